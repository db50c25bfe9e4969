"""REST for gRPC methods: JSON over HTTP, transcoded by the rules of `google.api.http`. Nothing here knows what a method
does."""
