"""What is known of libraries, as rows: a table for each kind of knowledge, and the one module that reads them."""
