"""The tests of nvfp; CONTRIBUTING.md says how to run them."""
