"""From records to answers: a table, a paragraph, files, a timeline and a picture."""
