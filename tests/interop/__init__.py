"""Tests of nvfp.interop."""
