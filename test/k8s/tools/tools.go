//go:build tools

// Package tools keeps in go.mod what is built for the cluster besides hyper.
package tools

import (
	_ "k8s.io/kubernetes/test/e2e"
	_ "k8s.io/kubernetes/test/images/agnhost"
)
