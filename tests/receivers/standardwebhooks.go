// Stands in for the library of the same name in the test of docs/RECEIVERS.md: the functions that the page uses, as
// https://www.standardwebhooks.com describes them. The library itself comes from Go's module proxy, which the tests do not use.
package standardwebhooks

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

type Webhook struct{ key []byte }

func NewWebhook(secret string) (*Webhook, error) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	return &Webhook{key}, err
}

func (webhook *Webhook) Verify(payload []byte, headers http.Header) error {
	id, timestamp := headers.Get("webhook-id"), headers.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil {
		return err
	}
	if age := time.Since(time.Unix(seconds, 0)); age.Abs() > 5*time.Minute {
		return errors.New("the timestamp is too far from now")
	}
	mac := hmac.New(sha256.New, webhook.key)
	mac.Write([]byte(id + "." + timestamp + "."))
	mac.Write(payload)
	expected := base64.StdEncoding.EncodeToString(mac.Sum(nil))
	for _, signature := range strings.Split(headers.Get("webhook-signature"), " ") {
		if version, value, _ := strings.Cut(signature, ","); version == "v1" && hmac.Equal([]byte(value), []byte(expected)) {
			return nil
		}
	}
	return errors.New("no signature matches")
}
