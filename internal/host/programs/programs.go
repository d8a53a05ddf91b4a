// Package programs finds the programs that SCON consists of.
package programs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Find returns the path of a program: beside this executable, which is where
// "make build", "make install" and packages put all of them, or in $PATH. As git
// does with its own commands, the folder wins, so that the programs of one
// version find each other.
func Find(name string) (string, error) {
	if self, err := os.Executable(); err == nil {
		path := filepath.Join(filepath.Dir(self), name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is missing: install the package %s, or \"make build\"", name, packageOf(name))
	}
	return path, nil
}

// packageOf returns the package that a program is in: packaging/nfpm.
func packageOf(name string) string {
	switch name {
	case "scon":
		return "scon"
	case "scon-cni", "scon-oci":
		return "scon-startup"
	default:
		return "scon-lab"
	}
}

// FindLibrary returns the path of a library that only SCON's programs use: beside this
// executable, or in ../lib/scon, where "make install" and packages put it.
func FindLibrary(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(self)
	for _, path := range []string{filepath.Join(dir, name), filepath.Join(dir, "../lib/scon", name)} {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is neither beside %s nor in ../lib/scon: install the package scon-pipe, or \"make install\"", name, self)
}
