"""The one function that runs a model: its code, in LLVM's IR."""
