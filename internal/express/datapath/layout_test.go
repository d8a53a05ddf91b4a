package datapath

import (
	"crypto/sha256"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// fingerprints are of the maps of each layout, names of fields included.
var fingerprints = map[int]string{
	7:  "4ff0ccc332b3bf65",
	8:  "6151fb9eca509e0c",
	9:  "371b0cb07cde9129",
	10: "5209087159ee137e",
	11: "43a7166579d81b6f",
	12: "9ce9d4350032d9b8",
	13: "919580a86994b625",
	14: "c344149b4b497f86",
	15: "c344149b4b497f86",
	16: "d41a7e330da1d87e",
	17: "d41a7e330da1d87e",
	18: "4c123f07b309b49c",
	19: "0516545cefe79209",
	20: "d2c5951e35170c3a",
	21: "d2c5951e35170c3a",
	22: "4419813913c4eabc",
	23: "4419813913c4eabc",
	24: "aa2e7fbaf586c9e7",
	25: "79bc91a5f83ff3f4",
	26: "0a6c273a890c4318",
	27: "2e6c4da65edc4cbc",
	28: "2e6c4da65edc4cbc",
	29: "2e6c4da65edc4cbc",
	30: "b920516f55883f57",
	31: "fd6950aef0a41e95",
	32: "fd6950aef0a41e95",
}

// A change of what daemons and programs share is a change of the layout's
// version, or a daemon would take over what it does not understand.
func TestLayoutVersion(t *testing.T) {
	layout := describeLayout(t)
	got := fmt.Sprintf("%x", sha256.Sum256([]byte(layout)))[:16]
	if want := fingerprints[LayoutVersion]; got != want {
		t.Errorf("layout %d has the fingerprint %q, had %q: it needs another version, in datapath.go and in maps.h\n%s",
			LayoutVersion, got, want, layout)
	}
	header, err := os.ReadFile("../../../bpf/lib/maps.h")
	if err != nil {
		t.Fatal(err)
	}
	if line := fmt.Sprintf("#define LAYOUT_VERSION %d\n", LayoutVersion); !strings.Contains(string(header), line) {
		t.Errorf("maps.h has not %q", line)
	}
}

// describeLayout lists maps and the fields of what lies in them.
func describeLayout(t *testing.T) string {
	t.Helper()
	var lines []string
	for _, v := range []any{expressHalf{}, expressOuter{}, expressBucket{}, expressSettings{}, expressDevice{}, expressCounters{}, expressEvent{}, expressEvent6{}} {
		lines = append(lines, fields("", reflect.TypeOf(v))...)
	}
	spec, err := loadExpress()
	if err != nil {
		t.Fatal(err)
	}
	maps := []string{}
	for _, name := range pinnedMaps {
		m := spec.Maps[name]
		maps = append(maps, fmt.Sprintf("map %s: %v, key %d, value %d, flags %#x", name, m.Type, m.KeySize, m.ValueSize, m.Flags))
	}
	slices.Sort(maps)
	return strings.Join(append(lines, maps...), "\n")
}

func fields(prefix string, typ reflect.Type) (lines []string) {
	lines = append(lines, fmt.Sprintf("%s%s: %d bytes", prefix, typ.Name(), typ.Size()))
	for i := range typ.NumField() {
		f := typ.Field(i)
		if f.Name == "_" {
			continue
		}
		lines = append(lines, fmt.Sprintf("%s  %s at %d: %v", prefix, f.Name, f.Offset, f.Type.Kind()))
		if f.Type.Kind() == reflect.Struct {
			lines = append(lines, fields(prefix+"  ", f.Type)...)
		}
	}
	return lines
}
