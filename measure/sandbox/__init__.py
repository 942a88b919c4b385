"""The sandbox: disposable processes, their limits, and messages to and from them."""
