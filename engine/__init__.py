"""Run a trained model on any hardware, at any scale, from one Python script."""
