"""Speed beside other libraries, and the limit of the hardware."""
