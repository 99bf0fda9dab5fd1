"""ECHO: selective turn memory and traced credit."""
