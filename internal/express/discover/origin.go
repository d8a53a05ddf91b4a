package discover

import (
	"cmp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Origin is what a container was made from. Image and labels are the words of whoever
// made them: they are cut to mostText and have no control characters.
type Origin struct {
	Image   string // as its engine calls it; of a pod those of its containers, joined by "+"
	Project string // of Compose, "" without
	Service string // of Compose, "" without
}

// mostText is how many bytes of an image's name or of a label's value are kept. The longest
// reference of a registry's image with a tag has 384.
const mostText = 384

// Labels of Docker Compose, which Podman's and nerdctl's Compose set as well, and those of
// podman-compose's own.
const (
	composeProject = "com.docker.compose.project"
	composeService = "com.docker.compose.service"
	podmanProject  = "io.podman.compose.project"
	podmanService  = "io.podman.compose.service"
)

// criImage is the annotation of a pod's container with its image.
const criImage = "io.kubernetes.cri.image-name"

// originOf returns the origin of a container, given its image and its labels.
func originOf(image string, labels map[string]string) Origin {
	return Origin{
		Image:   clean(image),
		Project: clean(cmp.Or(labels[composeProject], labels[podmanProject])),
		Service: clean(cmp.Or(labels[composeService], labels[podmanService])),
	}
}

// clean returns the printable characters of a text, at most mostText bytes.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, text[:min(len(text), mostText)])
}
