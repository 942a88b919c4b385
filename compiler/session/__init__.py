"""Models behind the interface of onnxruntime's sessions: options, ports, and the session itself.

A room above the compiler: whoever runs artefacts needs nothing of it but
`tunefarm.compiler.runtime`.
"""
