package doctor

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"

	"github.com/scon-project/scon/internal/api"
)

// rootlessForwarders are programs that forward the packets of rootless containers
// between their network namespace and sockets of their user.
var rootlessForwarders = []string{"pasta", "pasta.avx2", "slirp4netns"}

// findRootless finds containers whose traffic passes no device of this machine.
func findRootless(h host) (found []api.Finding) {
	processes, err := fs.ReadDir(os.DirFS(h.path("/proc")), ".")
	if err != nil {
		return nil
	}
	for _, p := range processes {
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		name, err := h.read("/proc/" + p.Name() + "/comm")
		if err != nil || !slices.Contains(rootlessForwarders, name) {
			continue
		}
		found = append(found, api.Finding{
			Level: note, What: fmt.Sprintf("containers behind process %s (%s) are not reachable here", p.Name(), name),
			Why: "they run without root: that process hands their data to sockets of its own, and no device " +
				"of this namespace has their packets",
			Remedy: "start them as root to have them express",
		})
	}
	return found
}
