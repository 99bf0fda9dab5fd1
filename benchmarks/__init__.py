"""What the zoo is measured by; no part of the installed package."""
