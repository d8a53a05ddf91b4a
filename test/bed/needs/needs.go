// Package needs finds the programs of a machine that measurements run.
package needs

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// Program is a program, by its name or path, and Debian's package that has it.
type Program struct {
	Name, Package string
	With          string // a package that has or recommends it, too: where that is missing, it is enough
}

// Docker is the engine and its client, which are in one package before Debian 13.
var Docker = []Program{{Name: "dockerd", Package: "docker.io"}, {Name: "docker", Package: "docker-cli", With: "docker.io"}}

// Path finds the program in $PATH, or in the folder of servers, which a user's $PATH lacks.
func (p Program) Path() (string, error) {
	path, err := exec.LookPath(p.Name)
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/" + p.Name)
	}
	if err != nil {
		return "", Missing(p)
	}
	return path, nil
}

// Check returns an error that names all of the programs that are missing, with the command
// that installs them, nil if none is.
func Check(programs ...Program) error {
	return Missing(slices.DeleteFunc(slices.Clone(programs), func(p Program) bool {
		_, err := p.Path()
		return err == nil
	})...)
}

// Missing returns the error of programs that are missing, nil for none.
func Missing(programs ...Program) error {
	var names, packages []string
	for _, p := range programs {
		if !slices.Contains(names, p.Name) {
			names = append(names, p.Name)
		}
		if !slices.Contains(packages, p.Package) && !slices.ContainsFunc(programs, func(o Program) bool { return o.Package == p.With }) {
			packages = append(packages, p.Package)
		}
	}
	switch len(names) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("%s is missing: apt-get install %s", names[0], packages[0])
	default:
		return fmt.Errorf("%s are missing: apt-get install %s", strings.Join(names, ", "), strings.Join(packages, " "))
	}
}
