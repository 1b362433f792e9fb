"""What clients of the Kubernetes API rely on, asked of whatever server a kubeconfig names."""
