package startup

import (
	"os"
	"path/filepath"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// FuzzBundle: every config.json of a runtime is a bundle or an error.
func FuzzBundle(f *testing.F) {
	f.Add([]byte(`{"annotations": {"a": "b"}, "process": {"env": ["SCON_NETWORK=x"]}, "linux": {"namespaces": [{"type": "network"}]}}`))
	f.Add([]byte(`{"linux": null, "process": null}`))
	f.Add([]byte(`{"LINUX": {"namespaces": [{"type": "network", "path": "/proc/1/ns/net"}]}}`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, content []byte) {
		if err := os.WriteFile(filepath.Join(dir, "config.json"), content, 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := readBundle(dir)
		if err != nil {
			return
		}
		_ = b.variable()
		if b.wantsNetns() && b.namespace(specs.NetworkNamespace) == nil {
			t.Error("it wants a network namespace, and lists none")
		}
	})
}

// FuzzDevices: a file /proc/net/dev with another device than those of a new namespace is
// not that of an empty namespace.
func FuzzDevices(f *testing.F) {
	f.Add("eth0")
	f.Add("")
	f.Fuzz(func(t *testing.T, name string) {
		_ = hasOnlyGiven(name)
		for _, c := range name {
			if c <= ' ' || c == ':' || c > '~' {
				return // no device has such a name
			}
		}
		const head = "Inter-|\n face |\n    lo: 0 0\n"
		if name != "" && hasOnlyGiven(head+"  "+name+": 0 0\n") && hasOnlyGiven(head) && len(name) > len("erspan0") {
			t.Errorf("%q is taken for a device of a new namespace", name)
		}
	})
}
