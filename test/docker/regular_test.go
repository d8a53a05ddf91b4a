package docker

import (
	"fmt"
	"testing"

	"github.com/scon-project/scon/internal/api"
)

// TestRegular declares containers of Docker by name, by a label and by a label's value: their
// connections stay regular, those of others go express.
func TestRegular(t *testing.T) {
	e := Start(t)
	s := newSCON(t, e.Machine, "--config", writeConfig(t, "regular: [name=db, label=policy, label=made=elsewhere]\n"))
	folder := t.TempDir()
	page := writePage(t, folder, "page", 1<<10)
	e.RunNginx(t, "web", folder, "--label", "made=here")
	client := newClient(t, e, 8080)
	get := func() { client.get(t, "page", page) }
	for i, c := range []struct{ name, label string }{{"db", "a=b"}, {"labelled", "policy"}, {"valued", "made=elsewhere"}} {
		port := 8090 + i
		own := e.Run(t, Spec{
			Name: c.name, Image: "nginx", Command: []string{"nginx"},
			Options: []string{"--label", c.label, "--publish", fmt.Sprintf("%d:80", port), "--volume", folder + ":/www:ro"},
		})
		own.waitListening(t, 80)
		s.waitHooked(t, c.name)
		other := newClient(t, e, port)
		for range 100 {
			other.get(t, "page", page)
		}
		if f, err := s.flow(t, from(c.name, "tcp", other.port())); err == nil && f.State == api.FlowExpress {
			t.Errorf("a connection of %s is express: %+v", c.name, f)
		}
	}
	get()
	s.waitExpress(t, from("web", "tcp", client.port()), get)
}
