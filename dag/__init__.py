"""Computation graphs: built, checked, analysed, rewritten, and run with their values in memory."""
