"""Models: a configuration in, a trainable and decodable Transformer out."""
