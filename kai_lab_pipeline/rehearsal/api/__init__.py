"""The Kubernetes API surface of the rehearsal, by concern; `rehearsal.app` puts HTTP in front of it."""
