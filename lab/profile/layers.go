package profile

import "slices"

// Names of layers that several stretches have, or that other code uses.
const (
	layerExpress   = "express: look up, check, rewrite, redirect"
	layerVeth      = "veth: transmit"
	layerVethQueue = "veth: queue of the other end"
	layerBridge    = "bridge"
	layerIPInput   = "IP input in the container"
)

// stretches names the layer between two points, each given as "place name". A
// stretch that is not listed is named by its points.
var stretches = map[[2]string]string{
	// From a container.
	{"container output", "container queue"}:       "IP output in the container",
	{"container queue", "container start"}:        "veth: qdisc, tc",
	{"container start", "port rx"}:                layerVeth,
	{"port rx", "container xmit"}:                 layerVeth,
	{"container xmit", "port receive"}:            layerVethQueue,
	{"port receive", "host prerouting"}:           layerBridge,
	{"host prerouting", "bridge receive"}:         layerBridge,
	{"port receive", "bridge receive"}:            layerBridge,
	{"bridge receive", "host prerouting"}:         "2nd IP layer: receive",
	{"bridge receive", "host forward"}:            "2nd IP layer: receive, route",
	{"host prerouting", "host forward"}:           "2nd IP layer: route",
	{"host forward", "host postrouting"}:          "2nd IP layer: forward",
	{"host postrouting", "wire queue"}:            "neighbour",
	{"wire queue", "wire start"}:                  "wire: qdisc, tc",
	{"port receive", "wire queue"}:                layerExpress,
	{"wire start", "edge rx"}:                     "wire: transmit",
	{"wire start", "elsewhere rx"}:                "wire: transmit",
	{"elsewhere rx", "wire xmit"}:                 "wire: transmit",
	{"edge rx", "wire xmit"}:                      "wire: transmit",
	{"wire start", "wire xmit"}:                   "wire: transmit",
	{"wire xmit", "edge receive"}:                 "wire: queue of the other end",
	{"edge receive", "edge input"}:                "IP input at the edge",
	{"host output", "host postrouting"}:           "IP output",
	{"host output", "wire queue"}:                 "IP output",
	{"wire receive", "host prerouting"}:           "2nd IP layer: receive",
	{"host postrouting", "bridge queue"}:          "neighbour",
	{"bridge queue", "bridge start"}:              layerBridge,
	{"bridge start", "port queue"}:                layerBridge,
	{"bridge start", "bridge xmit"}:               layerBridge,
	{"port xmit", "bridge xmit"}:                  layerBridge,
	{"port queue", "port start"}:                  "veth: qdisc, tc",
	{"port start", "container rx"}:                layerVeth,
	{"container rx", "port xmit"}:                 layerVeth,
	{"port xmit", "container receive"}:            layerVethQueue,
	{"bridge xmit", "container receive"}:          layerVethQueue,
	{"container receive", "container prerouting"}: layerIPInput,
	{"container prerouting", "container input"}:   layerIPInput,
	{"wire receive", "container prerouting"}:      layerExpress,
	{"wire receive", "port queue"}:                layerExpress,
}

// layerBetween returns the layer between two points.
func layerBetween(from, to point) Layer {
	if from.site != nil && from.site == to.site && from.hook == to.hook && from.nth+1 == to.nth {
		return ruleLayer(from)
	}
	name := stretches[[2]string{from.String(), to.String()}]
	if name == "" {
		name = from.String() + " to " + to.String()
	}
	return Layer{Name: name}
}

// ruleLayer returns the layer of the chains behind the nth waypoint of a hook.
func ruleLayer(p point) Layer {
	l := Layer{Name: "Netfilter " + p.name, Hook: p.name}
	if spans := p.site.spans[p.hook]; p.nth < len(spans) {
		l.Chains = spans[p.nth].chains
		l.Name += ": " + shortened(l.Chains)
	} else {
		l.Name += ": nothing"
	}
	return l
}

// shortened names the first of some chains.
func shortened(chains []string) string {
	if len(chains) > 1 {
		return chains[0] + ", ..."
	}
	return chains[0]
}

// layersOf returns the layers of a path, in order, and for each stretch the index
// of its layer. Stretches of one name are one layer.
func layersOf(points []point) (layers []Layer, belongs []int) {
	for i, to := range points[1:] {
		l := layerBetween(points[i], to)
		k := slices.IndexFunc(layers, func(x Layer) bool { return x.Name == l.Name })
		if k < 0 {
			k = len(layers)
			layers = append(layers, l)
		}
		belongs = append(belongs, k)
	}
	return layers, belongs
}

// isExpress reports whether a path passes through SCON's programs.
func isExpress(layers []Layer) bool {
	return slices.ContainsFunc(layers, func(l Layer) bool { return l.Name == layerExpress })
}
