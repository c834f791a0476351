"""Where datasets come from: a folder, parquet files, the Hugging Face Hub, a stream."""
