package datapath

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMemoryRoom(t *testing.T) {
	t.Parallel()
	const none = ^uint64(0)
	for _, tc := range []struct {
		name, groups string
		files        map[string]string
		limit        uint64
		group        string
	}{
		{"none", "0::/\n", nil, none, ""},
		{"unlimited", "0::/a\n", map[string]string{"a/memory.max": "max\n"}, none, ""},
		{"its own", "0::/a/b\n", map[string]string{"a/memory.max": "max\n", "a/b/memory.max": "4096\n"}, 4096, "/a/b"},
		{"in use", "0::/a\n", map[string]string{"a/memory.max": "4096\n", "a/memory.current": "1000\n", "memory.stat": "inactive_file 9\n"}, 3096, "/a"},
		{"in use, files", "0::/a\n", map[string]string{"a/memory.max": "4096\n", "a/memory.current": "1000\n", "a/memory.stat": "anon 5\ninactive_file 100\n"}, 3196, "/a"},
		{"used up", "0::/a\n", map[string]string{"a/memory.max": "4096\n", "a/memory.current": "5000\n"}, 0, "/a"},
		{"one above", "0::/a/b\n", map[string]string{"a/memory.max": "4096\n", "a/b/memory.max": "8192\n"}, 4096, "/a"},
		{"version 1", "4:memory:/a\n3:cpu:/c\n0::/\n", map[string]string{"memory/a/memory.limit_in_bytes": "4096\n", "memory/a/memory.usage_in_bytes": "96\n"}, 4000, "/a"},
		{"not mounted as the process sees it", "0::/../x\n", map[string]string{"x/memory.max": "4096\n"}, 4096, "/x"},
		{"damaged", "0::\nmemory\n\n", map[string]string{"memory.max": "many\n"}, none, ""},
	} {
		root := t.TempDir()
		for name, text := range tc.files {
			file := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if limit, group := memoryRoom(root, tc.groups); limit != tc.limit || group != tc.group {
			t.Errorf("%s: %d of %q, want %d of %q", tc.name, limit, group, tc.limit, tc.group)
		}
	}
}
