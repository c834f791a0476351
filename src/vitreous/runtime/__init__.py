"""What every floor stands on: devices, distributed processes, files, errors, start-up."""
