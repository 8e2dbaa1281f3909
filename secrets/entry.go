package secrets

import (
	"slices"
	"sync"
	"time"
)

// Entry is one version as Collect shows it to its judge.
type Entry struct {
	Path string
	// Version is 0 for an entry of which no version is left. Unreferenced lets
	// Collect forget its version numbers; nothing is lost.
	Version int
	// Created is when the version was written, DeletedAt when Collect deleted
	// it, zero when it is readable; both by the store's clock.
	Created, DeletedAt time.Time
	// Birth is that of the version; zero when it has none.
	Birth Birth
	// Due is what Collect does now if the verdict is Unreferenced.
	Due Due
}

// Due is an act of Collect.
type Due int

// What Collect does with a version that is Unreferenced: nothing, because it
// was deleted less than the retention ago; delete it; destroy it.
const (
	DueNothing Due = iota
	DueDelete
	DueDestroy
)

// Verdict is what a judge says of an Entry.
type Verdict int

// The verdicts.
const (
	// Leave: Collect does nothing with it now and does not count it.
	Leave Verdict = iota
	// Keep: it is referenced. Collect undeletes it if it is deleted, and gives
	// it the pass's birth if it has none.
	Keep
	// Stranger: nobody knows whose it is. Collect leaves it alone and counts it.
	Stranger
	// Unreferenced: it is the caller's and nothing refers to it. Collect deletes
	// it, and destroys it when it was deleted longer ago than the retention.
	Unreferenced
)

// maxStrangers bounds Collected.StrangerPaths.
const maxStrangers = 100

// Collected is what a pass of Collect did.
type Collected struct {
	// Deleted versions can be undeleted, Destroyed ones can't. Undeleted were
	// deleted and are referenced. Stamped were referenced and had no birth.
	Deleted, Destroyed, Undeleted, Stamped int
	// Strangers counts versions that were left alone; StrangerPaths has the
	// first paths of them, sorted.
	Strangers     int
	StrangerPaths []string
}

// note adds what was done with one entry.
func (c *Collected) note(path string, d decision) {
	c.Deleted += len(d.remove)
	c.Destroyed += len(d.destroy)
	c.Undeleted += len(d.undelete)
	c.Stamped += len(d.stamp)
	c.Strangers += d.strangers
	if d.strangers > 0 {
		c.StrangerPaths = append(c.StrangerPaths, path)
	}
}

// trim sorts the paths and drops what is more than the bound.
func (c *Collected) trim() {
	slices.Sort(c.StrangerPaths)
	c.StrangerPaths = slices.Compact(c.StrangerPaths)
	c.StrangerPaths = c.StrangerPaths[:min(len(c.StrangerPaths), maxStrangers)]
}

// decision is what is to be done with the versions of one entry.
type decision struct {
	remove, destroy, undelete, stamp []int
	strangers                        int
	// kept counts the versions that are not destroyed afterwards.
	kept int
}

// pass is one run of Collect.
type pass struct {
	mu    sync.Mutex
	judge func(Entry) Verdict
	birth Birth
	// now is the store's clock.
	now              time.Time
	grace, retention time.Duration
}

// ask calls the judge.
func (p *pass) ask(e Entry) Verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.judge(e)
}

// decide asks about one version that is not destroyed. A version younger than
// the grace period may belong to a command that is still on its way, even to
// one that the judge's view does not hold yet: nobody is asked about it.
func (p *pass) decide(e Entry, d *decision) {
	d.kept++
	if p.now.Sub(e.Created) <= p.grace {
		return
	}
	switch {
	case e.DeletedAt.IsZero():
		e.Due = DueDelete
	case p.now.Sub(e.DeletedAt) > p.retention:
		e.Due = DueDestroy
	}
	switch p.ask(e) {
	case Keep:
		if !e.DeletedAt.IsZero() {
			d.undelete = append(d.undelete, e.Version)
		}
		if e.Birth == (Birth{}) && p.birth != (Birth{}) {
			d.stamp = append(d.stamp, e.Version)
		}
	case Stranger:
		d.strangers++
	case Unreferenced:
		switch e.Due {
		case DueDelete:
			d.remove = append(d.remove, e.Version)
		case DueDestroy:
			d.destroy = append(d.destroy, e.Version)
			d.kept--
		}
	}
}
