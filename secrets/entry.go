package secrets

import (
	"slices"
	"sync"
	"time"
)

// Entry is one version, as Collect passes it to its judge.
type Entry struct {
	Path string
	// Version is 0 for an entry without any remaining version. Unreferenced then lets Collect delete
	// the entry's metadata, and no data is lost.
	Version int
	// Created is when the version was written. DeletedAt is when Collect deleted it, zero when it is
	// readable. Both are by the store's clock.
	Created, DeletedAt time.Time
	// Birth is the version's birth; zero when it has none.
	Birth Birth
	// Due is what Collect does now if the verdict is Unreferenced.
	Due Due
}

// Due is an action of Collect.
type Due int

// What Collect does with an Unreferenced version: nothing, because it was deleted less than the
// retention ago; delete it; destroy it.
const (
	DueNothing Due = iota
	DueDelete
	DueDestroy
)

// Verdict is a judge's decision about an Entry.
type Verdict int

// The verdicts.
const (
	// Leave: Collect does nothing with the version and does not count it.
	Leave Verdict = iota
	// Keep: the version is referenced. Collect undeletes it if it is deleted, and gives it the pass's
	// birth if it has none.
	Keep
	// Stranger: the owner is unknown. Collect does not change the version and counts it.
	Stranger
	// Unreferenced: the version is the caller's and nothing refers to it. Collect deletes it, and
	// destroys it once it has been deleted for longer than the retention.
	Unreferenced

	// Named is added to another verdict: a backup names the version. Collect does not destroy it, and
	// Vault's Write does not push it out.
	Named Verdict = 1 << 8
)

// maxStrangers bounds Collected.StrangerPaths.
const maxStrangers = 100

// Collected is the result of a pass of Collect.
type Collected struct {
	// Deleted versions can be undeleted, Destroyed ones can't. Undeleted versions were deleted
	// although they are referenced. Stamped versions are referenced and had no birth.
	Deleted, Destroyed, Undeleted, Stamped int
	// Strangers counts versions that were not changed. StrangerPaths has their first paths, sorted.
	Strangers     int
	StrangerPaths []string
}

// note adds the changes to one entry.
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

// trim sorts the paths and keeps the first maxStrangers of them.
func (c *Collected) trim() {
	slices.Sort(c.StrangerPaths)
	c.StrangerPaths = slices.Compact(c.StrangerPaths)
	c.StrangerPaths = c.StrangerPaths[:min(len(c.StrangerPaths), maxStrangers)]
}

// decision lists the changes to the versions of one entry.
type decision struct {
	remove, destroy, undelete, stamp []int
	strangers                        int
	// kept counts the versions that are not destroyed afterwards.
	kept int
	// named is the lowest version that a backup names, 0 for none.
	named int
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

// ask calls the judge. The mutex keeps it to one goroutine at a time.
func (p *pass) ask(e Entry) Verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.judge(e)
}

// decide decides about one version that is not destroyed. It skips a version younger than the grace
// period, which may belong to a command in flight that the judge's view does not hold yet.
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
	verdict := p.ask(e)
	if verdict&Named != 0 && (d.named == 0 || e.Version < d.named) {
		d.named = e.Version
	}
	switch verdict &^ Named {
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
			if verdict&Named != 0 {
				return
			}
			d.destroy = append(d.destroy, e.Version)
			d.kept--
		}
	}
}
