package k8s

import "strings"

// The commands of docs/kubernetes.md, which test/docs compares with that page.
const (
	guideUpgrade   = "helm upgrade scon packaging/helm/scon --namespace scon-system --reset-then-reuse-values --set image.tag=VERSION --wait"
	guideUninstall = "helm uninstall scon --namespace scon-system --wait"
)

// runGuide runs a command of the document.
func (c *cluster) runGuide(command string) (printed string) {
	c.t.Helper()
	text := strings.NewReplacer("NAMESPACE/POD/CONTAINER", "default/server/echo", "POD", c.daemonOn(1), "web-0", "far",
		"VERSION", "test", "packaging/", "../../packaging/").Replace(command)
	program, args, _ := strings.Cut(text, " ")
	if program == "kubectl" {
		return c.kubectl(strings.Fields(args)...)
	}
	c.inChart(strings.Fields(args)...)
	return ""
}

// What the document says to look at is there.
func (c *cluster) testGuide() {
	for command, want := range map[string]string{
		"kubectl -n scon-system get pods -l app.kubernetes.io/component=daemon -o wide":   c.daemonOn(2),
		"kubectl -n scon-system exec POD -c scon -- scon status":                          "default/server/echo",
		"kubectl -n scon-system exec POD -c scon -- scon explain NAMESPACE/POD/CONTAINER": "default/server/echo",
		"kubectl annotate pod web-0 scon.dev/forward=regular":                             "annotated",
	} {
		if printed := c.runGuide(command); !strings.Contains(printed, want) {
			c.t.Errorf("%s: no %q in\n%s", command, want, printed)
		}
	}
	c.runGuide(guideUpgrade)
}
