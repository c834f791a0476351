"""Where datasets come from: folders, tables, parquet files, torchvision, the Hugging Face Hub, a stream."""
