"""Convolutions in one, two and three dimensions, channels last: direct, by register tiles, without im2col."""
