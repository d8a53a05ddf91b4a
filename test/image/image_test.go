// Package image builds SCON's image and runs it.
package image

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var full = flag.Bool("full", false, "build the image for both architectures, which takes minutes, and run it")

// run runs a command from the root of the sources, and returns what it prints.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = "../.."
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return strings.TrimSpace(string(out))
}

// The image is one for both architectures, has the labels of an OCI image, and runs
// without rights, without network and without a file of its own that it may write.
func TestImage(t *testing.T) {
	if !*full {
		t.Skip("the full form: make test-packages")
	}
	if _, err := exec.LookPath("podman"); err != nil {
		t.Fatal("no podman: scripts/install-deps.sh image installs it")
	}
	dir, name := t.TempDir(), fmt.Sprintf("localhost/scon-test-%d", os.Getpid())
	t.Setenv("VERSION", "1.2.3~rc1")
	image := name + ":1.2.3-rc1"
	t.Cleanup(func() {
		_ = exec.Command("podman", "manifest", "rm", image).Run()
		_ = exec.Command("podman", "image", "prune", "--force", "--filter", "label=org.opencontainers.image.version=1.2.3~rc1").Run()
	})
	run(t, "scripts/image.sh", dir, name)
	if _, err := os.Stat(filepath.Join(dir, "scon-1.2.3-rc1-image.tar")); err != nil {
		t.Error(err)
	}

	var manifest struct {
		Manifests []struct {
			Digest   string
			Platform struct{ Architecture string }
		}
	}
	if err := json.Unmarshal([]byte(run(t, "podman", "manifest", "inspect", image)), &manifest); err != nil {
		t.Fatal(err)
	}
	var arches []string
	for _, m := range manifest.Manifests {
		arches = append(arches, m.Platform.Architecture)
	}
	slices.Sort(arches)
	if !slices.Equal(arches, []string{"amd64", "arm64"}) {
		t.Errorf("architectures %v", arches)
	}

	labels := run(t, "podman", "image", "inspect", "--format", "{{json .Config.Labels}}", image)
	for _, label := range []string{"title", "source", "licenses", "version", "revision", "created"} {
		if !strings.Contains(labels, `"org.opencontainers.image.`+label+`":"`) || strings.Contains(labels, label+`":""`) {
			t.Errorf("no label %s: %s", label, labels)
		}
	}
	got := run(t, "podman", "run", "--rm", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--network", "none", "--read-only", "--cap-drop", "ALL", image, "version")
	if !strings.HasPrefix(got, "scon 1.2.3~rc1 (commit ") {
		t.Errorf("printed %q", got)
	}
}
