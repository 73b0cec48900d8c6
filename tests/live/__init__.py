"""Readers on real engines of real ranks."""
