"""What trainings of texts and of images share."""
