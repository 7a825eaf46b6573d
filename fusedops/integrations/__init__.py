"""The ops in other systems; each module needs the packages of its system."""
