"""Image files of every kind as arrays of numbers: what was read, files of each kind, DICOM and NIfTI."""
