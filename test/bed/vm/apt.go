package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// apt downloads packages of any Debian suite and architecture from this machine's
// mirror. It has a state directory of its own: it neither changes this machine's apt
// nor installs packages.
type apt struct {
	dir string
}

// ErrNoMirror says that Debian's packages are not to be had by this machine's apt.
var ErrNoMirror = errors.New("apt has no Debian mirror: run apt-get update")

const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// newApt prepares dir for a suite and its base suite.
func newApt(ctx context.Context, dir, arch, suite string) (*apt, error) {
	mirror, err := debianMirror(ctx)
	if err != nil {
		return nil, err
	}
	for _, sub := range []string{"lists/partial", "archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	base, _, _ := strings.Cut(suite, "-") // the base of NAME-backports
	sources := ""
	for _, s := range []string{base, suite} {
		sources += fmt.Sprintf("deb [signed-by=%s] %s %s main\n", keyring, mirror, s)
		if base == suite {
			break
		}
	}
	// The cleared lists are hooks of this machine's apt.
	config := fmt.Sprintf(`
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Post-Invoke;
#clear APT::Architectures;
APT::Architecture "%[2]s";
APT::Architectures { "%[2]s"; };
APT::Sandbox::User "root";
APT::Install-Recommends "false";
Acquire::Languages "none";
Dir::State "%[1]s";
Dir::State::status "%[1]s/status";
Dir::Cache "%[1]s";
Dir::Etc::sourcelist "%[1]s/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
`, dir, arch)
	for name, content := range map[string]string{"sources.list": sources, "apt.conf": config, "status": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return nil, err
		}
	}
	a := &apt{dir: dir}
	_, err = a.run(ctx, "apt-get", "update")
	return a, err
}

// debianMirror returns the mirror that this machine's apt uses.
func debianMirror(ctx context.Context) (string, error) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return "", fmt.Errorf("%w, on a machine with apt", ErrNoMirror)
	}
	out, err := output(exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI)",
		"Origin: Debian", "Label: Debian", "Created-By: Packages"))
	if err != nil {
		return "", err
	}
	if mirrors := strings.Fields(out); len(mirrors) > 0 {
		return mirrors[0], nil
	}
	return "", ErrNoMirror
}

// download fetches packages without their dependencies, and returns the files.
func (a *apt) download(ctx context.Context, packages ...string) ([]string, error) {
	cmd := a.command(ctx, "apt-get", append([]string{"download"}, packages...)...)
	cmd.Dir = a.dir
	if _, err := output(cmd); err != nil {
		return nil, err
	}
	return filepath.Glob(filepath.Join(a.dir, "*.deb"))
}

// downloadAll fetches packages with their dependencies, and returns the files.
func (a *apt) downloadAll(ctx context.Context, packages ...string) ([]string, error) {
	if _, err := a.run(ctx, "apt-get", append([]string{"install", "--download-only", "--yes"}, packages...)...); err != nil {
		return nil, err
	}
	return filepath.Glob(filepath.Join(a.dir, "archives", "*.deb"))
}

// depends returns the dependencies of a package of a suite.
func (a *apt) depends(ctx context.Context, suite, name string) ([]string, error) {
	out, err := a.run(ctx, "apt-cache", "show", "--no-all-versions", "--target-release", suite, name)
	if err != nil {
		return nil, err
	}
	var packages []string
	for line := range strings.Lines(out) {
		if list, ok := strings.CutPrefix(line, "Depends: "); ok {
			for p := range strings.SplitSeq(list, ",") {
				packages = append(packages, strings.Fields(p)[0])
			}
		}
	}
	return packages, nil
}

func (a *apt) run(ctx context.Context, name string, args ...string) (string, error) {
	return output(a.command(ctx, name, args...))
}

func (a *apt) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	args = append([]string{"-qq", "--config-file", filepath.Join(a.dir, "apt.conf")}, args...)
	return exec.CommandContext(ctx, name, args...)
}

// output runs a command and returns its output. An error contains the output.
func output(cmd *exec.Cmd) (string, error) {
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}
