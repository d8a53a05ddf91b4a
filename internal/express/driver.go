package express

import "github.com/scon-project/scon/internal/startup/docker"

// startDriver starts Docker's network driver, if it is wanted. It works beside
// the loop, which sees its devices as it sees everybody's.
func (d *Daemon) startDriver() (err error) {
	c := d.opts.Config.Docker
	if !c.Enabled {
		return nil
	}
	d.driver, err = docker.New(docker.Options{Socket: c.Socket, Dir: c.Directory, Logger: d.log})
	return err
}

// stopDriver ends it, once; networks stay.
func (d *Daemon) stopDriver() error {
	driver := d.driver
	if driver == nil {
		return nil
	}
	d.driver = nil
	return driver.Close()
}
