"""Job library and the mr command."""
