"""Sources and receivers of tiled video: FFmpeg encodes and decodes (by PyAV); packets are read and written here, by code that shares nothing with the mixer's."""
