// Command nolines takes the lines of the source out of a dumped section .BTF.ext (struct
// btf_ext_header of the kernel's Documentation/bpf/btf.rst): what is left are the functions,
// and the places of the kernel's fields.
//
// Usage: nolines FILE
package main

import (
	"encoding/binary"
	"fmt"
	"os"
)

// header is struct btf_ext_header. Offsets are from its end.
type header struct {
	Magic                          uint16
	Version, Flags                 uint8
	Size                           uint32
	FuncOff, FuncLen               uint32
	LineOff, LineLen               uint32
	RelocationsOff, RelocationsLen uint32
}

// sizeofRecord is the length of the number that each part begins with: the length of its
// records.
const sizeofRecord = 4

func main() {
	if err := strip(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "nolines:", err)
		os.Exit(1)
	}
}

func strip(name string) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	var h header
	if _, err := binary.Decode(b, binary.LittleEndian, &h); err != nil {
		return err
	}
	parts := b[h.Size:]
	functions, lines := parts[h.FuncOff:][:h.FuncLen], parts[h.LineOff:][:sizeofRecord]
	relocations := parts[h.RelocationsOff:][:h.RelocationsLen]
	h.Size = uint32(binary.Size(h))
	h.FuncOff, h.LineOff, h.LineLen, h.RelocationsOff = 0, h.FuncLen, sizeofRecord, h.FuncLen+sizeofRecord
	out := make([]byte, binary.Size(h))
	if _, err := binary.Encode(out, binary.LittleEndian, h); err != nil {
		return err
	}
	out = append(append(append(out, functions...), lines...), relocations...)
	return os.WriteFile(name, out, 0o644)
}
