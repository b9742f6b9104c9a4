"""The messages of `protos/thread/v1/thread.proto`, generated when the package is built or installed."""
