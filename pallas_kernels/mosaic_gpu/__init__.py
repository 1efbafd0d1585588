"""What the Mosaic GPU kernels of all operations share."""
