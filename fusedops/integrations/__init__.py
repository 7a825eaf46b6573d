"""The ops in other systems; each module needs what that system needs."""
