package discover

import (
	"path/filepath"
	"slices"
	"testing"
)

// The networks of a container whose bridge is in a namespace of the engine's own are named
// with it, those that the engine encrypts as such. The namespace of a container, that of a
// network which is not on this machine, and the daemon's own are none.
func TestOverlays(t *testing.T) {
	n := newNamed(t)
	n.process(42, n.d.c, "/docker/"+idA)
	dir := filepath.Base(n.namer.at.netns[1])
	for file, ns := range map[string]string{
		"1-abcdefghij": n.d.outside, "12-klmnopqrs": n.d.outside, "3-uvwxyz0123": n.d.ns, "0123456789ab": n.d.c, "1-": n.d.outside, "lb_abcdefghi": n.d.outside,
	} {
		n.link(filepath.Join(dir, file), ns)
	}
	n.answers(n.namer.at.docker, map[string]string{
		"containers/" + idA + "/json": `{"Name": "/web", "NetworkSettings": {"Networks": {
			"shop": {"NetworkID": "abcdefghijklmnopqrstuvwxy"},
			"bank\u001b": {"NetworkID": "klmnopqrstuvwxyzabcdefghi"},
			"here": {"NetworkID": "uvwxyz0123abcdefghijklmno"},
			"elsewhere": {"NetworkID": "yyyyyyyyyyyyyyyyyyyyyyyyy"},
			"bridge": {"NetworkID": "` + idB + `"},
			"none": {}}}}`,
		"networks/klmnopqrstuvwxyzabcdefghi": `{"Driver": "overlay", "Options": {"encrypted": ""}}`,
		"networks/abcdefghijklmnopqrstuvwxy": `{"Driver": "overlay", "Options": {"com.docker.network.driver.overlay.vxlanid_list": "4097"}}`,
	})
	c, at := n.identify(), n.namer.at.netns[1]
	want := []Overlay{{"bank", filepath.Join(at, "12-klmnopqrs"), true}, {"shop", filepath.Join(at, "1-abcdefghij"), false}}
	if c.Name != "web" || !slices.Equal(c.Overlays, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}
