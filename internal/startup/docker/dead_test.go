package docker

import (
	"testing"

	"github.com/scon-project/scon/test/bed/nstest"
)

// The port of a container that has ended is free, though the driver was not told: it died while
// Docker did.
func TestEndedUnheard(t *testing.T) {
	for name, heard := range map[string]func(*world){"": func(*world) {}, "restarted": (*world).crash} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			const ended, next = "aaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbb"
			w.do(func() error { return w.driver.CreateNetwork(request(netID, "172.30.0.0/24", "172.30.0.1/24", nil)) })
			w.run(netID, ended, "172.30.0.2", tcp("", 8080, 80))
			nstest.Run(t, w.host, "ip link del "+w.driver.networks[netID].Endpoints[ended].Host)
			w.do(func() error { return w.driver.DeleteEndpoint(&endpointRequest{}) })
			heard(w)
			w.serve(w.run(netID, next, "172.30.0.3", tcp("", 8080, 80)), "next")
			w.reaches(w.outside, "192.0.2.2:8080", "next")
			if n := len(w.driver.networks[netID].Endpoints); n != 1 {
				t.Errorf("%d endpoints, want 1", n)
			}
		})
	}
}
