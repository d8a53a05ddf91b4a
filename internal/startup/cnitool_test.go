package startup

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/version"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/nstest"
)

// The CNI project's cnitool runs the plugin from ADD to DEL, in every version whose results
// have interfaces.
func TestCnitool(t *testing.T) {
	tool, err := exec.Command("go", "tool", "-n", "cnitool").Output()
	if err != nil {
		t.Fatalf("build cnitool: %v", err)
	}
	b := newBed(t)
	b.start()
	for _, v := range version.All.SupportedVersions() {
		if ok, _ := version.GreaterThanOrEqualTo(v, "0.3.0"); !ok {
			continue
		}
		t.Run(v, func(t *testing.T) {
			networks, pod := t.TempDir(), nstest.New(t)
			// Its cache is below /var/lib.
			lib := t.TempDir()
			list := fmt.Sprintf(`{"cniVersion": %q, "name": "net", "plugins": [%s]}`, v, strings.Replace(b.conf(), `"cniVersion": "1.1.0", "name": "net", `, "", 1))
			if err := os.WriteFile(filepath.Join(networks, "10-net.conflist"), []byte(list), 0o600); err != nil {
				t.Fatal(err)
			}
			call := func(verb string, args ...string) (out []byte, err error) {
				t.Helper()
				cmd := exec.Command("unshare", append([]string{"--mount", "sh", "-c", "mount --bind " + lib + ` /var/lib && exec "$@"`, "sh",
					strings.TrimSpace(string(tool)), verb, "net"}, args...)...)
				cmd.Env = append(os.Environ(), "CNI_PATH="+bin, "NETCONFPATH="+networks)
				nstest.Do(t, b.host, func() { out, err = cmd.CombinedOutput() })
				return out, err
			}
			run := func(verb string, args ...string) string {
				t.Helper()
				out, err := call(verb, args...)
				if err != nil {
					t.Fatalf("cnitool %s: %v: %s", verb, err, out)
				}
				return string(out)
			}
			has := func(since string) bool {
				ok, err := version.GreaterThanOrEqualTo(v, since)
				return ok && err == nil
			}
			if has("1.1.0") {
				run("status", netns.Path(pod))
			}
			if out := run("add", netns.Path(pod)); !strings.Contains(out, `"cniVersion": "`+v+`"`) || !strings.Contains(out, netns.Path(pod)) {
				t.Errorf("add: %s", out)
			}
			b.ping(pod)
			if has("0.4.0") {
				run("check", netns.Path(pod))
			}
			run("del", netns.Path(pod))
			run("del", netns.Path(pod))
			if has("1.1.0") {
				run("add", netns.Path(pod))
				// libcni deletes what it remembers itself; the plugin's GC does not say
				// what to keep.
				out, err := call("gc", netns.Path(pod))
				if err == nil || !strings.Contains(string(out), "without cni.dev/valid-attachments") {
					t.Errorf("cnitool gc: %v: %s", err, out)
				}
			}
			b.wantNothing()
		})
	}
}
