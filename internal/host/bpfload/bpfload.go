// Package bpfload loads BPF programs and maps.
package bpfload

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/cilium/ebpf"
)

// LogVariable is the environment variable that has the verifier's log written to
// stderr when the kernel refuses a program. Errors have its last lines only.
const LogVariable = "SCON_VERIFIER_LOG"

// LoadAndAssign does what spec's method of that name does.
func LoadAndAssign(spec *ebpf.CollectionSpec, to any, opts *ebpf.CollectionOptions) error {
	err := spec.LoadAndAssign(to, opts)
	var refused *ebpf.VerifierError
	if os.Getenv(LogVariable) != "" && errors.As(err, &refused) {
		fmt.Fprintf(os.Stderr, "%+v\n", refused)
	}
	return err
}

// Read reads an object that scripts/pack-bpf.sh has compressed.
func Read(packed []byte) (*ebpf.CollectionSpec, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("unpack the BPF object: %w", err)
	}
	object, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("unpack the BPF object: %w", err)
	}
	return ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
}
