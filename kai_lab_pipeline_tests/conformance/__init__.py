"""The conformance lane: the same suites and the same graph on a real kube-apiserver, with real helm and a registry."""
